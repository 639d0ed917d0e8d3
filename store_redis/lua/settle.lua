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
local disproved = not live and l.numbers[token] < l.succeeded -- a probe admitted later has succeeded
local progress = l.progress + (outcome == 'success' and 1 or 0)
if outcome == 'failure' and not disproved then
  begin(number, 'open', tonumber(ARGV[9]), tonumber(ARGV[8]))
  mirror_epoch()
elseif outcome == 'success' and progress >= tonumber(ARGV[7]) then
  begin(number, 'closed', l.openings, 0)
  mirror_epoch()
else
  if outcome == 'success' then
    l.progress, l.succeeded = progress, math.max(l.succeeded, l.numbers[token])
    put_series()
  end
  l.tokens[token] = nil
  l.live = l.live - (live and 1 or 0)
  unset[#unset + 1] = 'slot:' .. token
  announce = live or outcome == 'success' -- what comes after its lease and decides nothing frees nothing either
end
return answer({applied = true})
