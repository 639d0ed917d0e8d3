-- Gives probe slots. Where none is given, nothing is written.
--
-- ARGV[4] the highest epoch known, [5] the lease, [6] slots that may be live at once, [7] openings for a ledger that has
-- been lost; then the tokens, one for each slot

local REMEMBERED = 1024 -- slots whose lease has ended
local known, lease, limit = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local lost = l.epoch == 0 or l.epoch < known
local due = l.state == 'open' and now >= l.open_until

if lost or due then
  local number = above(known)
  if corrupt or not number or lease == 0 or limit == 0 or #ARGV < 8 then
    return unchanged()
  end
  begin(number, 'half-open', lost and tonumber(ARGV[7]) or l.openings, 0)
end
if corrupt or l.state ~= 'half-open' then
  return unchanged()
end

local granted, given, number = 0, false, l.succeeded
for _, earlier in pairs(l.numbers) do
  number = math.max(number, earlier)
end
for i = 8, #ARGV do
  local token = ARGV[i]
  local lease_end = l.tokens[token]
  if lease_end and lease_end > now then
    granted = granted + 1
  elseif not lease_end and l.live < limit and lease > 0 then
    number = number + 1
    l.tokens[token], l.numbers[token] = now + lease, number
    l.live, granted, given = l.live + 1, granted + 1, true
    put_slot(token)
  end
end

local first, ended = nil, {}
for token, lease_end in pairs(l.tokens) do
  if lease_end <= now then
    ended[#ended + 1] = token
  elseif not first or lease_end < first then
    first = lease_end
  end
end
if given and #ended > REMEMBERED then
  table.sort(ended, function(a, b) return l.tokens[a] < l.tokens[b] end)
  for i = 1, #ended - REMEMBERED do
    unset[#unset + 1] = 'slot:' .. ended[i]
    l.tokens[ended[i]] = nil
  end
end
if rewrite then
  mirror_epoch()
end
return answer({applied = rewrite, granted = granted, retry = granted < #ARGV - 7 and first and first - now or 0})
