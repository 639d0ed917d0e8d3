-- Ends a probe, and the state with it where the probe decides.
--
-- ARGV[4] the epoch, [5] the token, [6] success, failure or ignored, [7] successes in a row that close, [8] the open period
-- and [9] the openings in this series after a failure

local token, outcome = ARGV[5], ARGV[6]
local lease_end = l.epoch == tonumber(ARGV[4]) and l.tokens[token]
local number = above(l.epoch)
if corrupt or not lease_end or not number then
  return unchanged()
end

local live = lease_end > now
local progress = l.progress + (outcome == 'success' and 1 or 0)
if outcome == 'failure' and live then
  begin(number, 'open', tonumber(ARGV[9]), tonumber(ARGV[8]))
  mirror_epoch()
elseif outcome == 'success' and progress >= tonumber(ARGV[7]) then
  begin(number, 'closed', l.openings, 0)
  mirror_epoch()
else
  l.progress = progress
  put_series()
  l.tokens[token] = nil
  l.live = l.live - (live and 1 or 0)
  unset[#unset + 1] = 'slot:' .. token
  announce = outcome ~= 'failure' -- a failure after the end of its lease does not count, and frees no slot
end
return answer({applied = true})
