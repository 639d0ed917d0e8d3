-- Begins a new epoch, unless the ledger has moved on from where the decision was made.
--
-- ARGV[4] the epoch it starts from, [5] the run the decision rests on or 0, [6] the new state, [7] the open period,
-- [8] openings in this series

local from, run = tonumber(ARGV[4]), tonumber(ARGV[5])
local number = above(from)
if corrupt or not number or l.epoch > from or (l.epoch == from and run > 0 and run ~= l.run) then
  return unchanged()
end
begin(number, ARGV[6], tonumber(ARGV[8]), tonumber(ARGV[7]))
mirror_epoch()
return answer({applied = true})
