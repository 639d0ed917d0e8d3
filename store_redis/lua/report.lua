-- Reads a ledger, and enters a batch into it if there is one and the epoch is right.
--
-- ARGV[4] epoch, [5] node, [6] head, [7] tail, [8] longest, [9] trailing, or -1 if the successes came before the run, [10] age
-- of the last failure, [11] number of slices; then five numbers for each slice: age, successes, failures, ignored, slow; then
-- the ages of the last failures, oldest first. Without a slice it is a read, and writes nothing.

local known, node, slices = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[11])

-- add_slice adds the counts of a slice to the window.
local function add_slice(age, counts)
  if l.window == 0 then
    add(l.sums, counts)
    return
  end
  local i = math.floor((now - age) / length)
  if i <= l.newest - BUCKETS then -- it has left the window
    return
  end
  local field = 'b' .. i % BUCKETS
  if not buckets[field] then
    buckets[field] = four(fetch({field})[1])
  end
  add(buckets[field], counts)
  buckets[field].changed = true
  add(l.sums, counts)
end

-- add_failures keeps the times of the failures whose ages are ARGV[i] and the following; the last ones, as many as tail,
-- belong to the current run. One that is older than the last one kept gets the time of that one, so that they stay in order.
local function add_failures(i, tail)
  local count = #ARGV
  local last = l.next > l.first and i <= count and failed_at(l.next - 1) or 0
  for j = math.max(i, count - l.max_failures + 1), count do
    local at = now - tonumber(ARGV[j])
    if at > oldest then
      last = math.max(at, last)
      put('f' .. l.next % l.max_failures, string.format('%d', last))
      l.next = l.next + 1
      if count - j < tail then
        l.in_run = l.in_run + 1
      end
    end
  end
  l.first = math.max(l.first, l.next - l.max_failures)
  l.in_run = math.min(l.in_run, l.next - l.first)
end

-- note_reporter notes that the node has failed: in its own field, or else in that of the node whose last failure is oldest.
local function note_reporter(at)
  local place = 1
  for i = 1, #reporters do
    if reporters[i].who == node then
      place = i
      break
    end
    if reporters[i].at < reporters[place].at then
      place = i
    end
  end
  local was = reporters[place]
  if at <= oldest or was.at > at then
    return
  end
  if not was.who or was.at <= oldest then
    l.reporters = l.reporters + 1
  end
  put('r' .. place, string.format('%d:%s', at, node))
end

-- admit says whether the batch may be entered. An empty ledger begins in the epoch of the batch first.
local function admit()
  if l.epoch == 0 then
    local number = known > 0 and known <= ahead and known or above(known)
    if not number then
      return false
    end
    begin(number, 'closed', 0, 0)
    if known > 0 then
      l.run = clock -- the ledger had this epoch before it was lost: no run number of that time may come again
    end
    return true
  end
  if l.state ~= 'closed' or (known > 0 and known ~= l.epoch) then
    return false
  end
  if l.shape == shape then
    l.reported_at = now
  elseif now - l.reported_at >= math.max(l.window, 60000000) then -- nobody reports with the old shape any more
    l.run = l.failures > 0 and l.run + 1 or l.run
    clear()
  end
  return true
end

-- enter_batch enters the batch, as if its outcomes had come one after another: the successes in one place of the run, the
-- failures before, between and after them.
local function enter_batch()
  local head, tail, longest, trailing = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
  local ok, failed = 0, 0
  for i = 12, 11 + slices * 5, 5 do
    local counts = {tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])}
    ok, failed = total(ok, counts[1]), total(failed, counts[2])
    add_slice(tonumber(ARGV[i]), counts)
  end

  if trailing < 0 then
    ok, trailing = 0, 0
  end
  local before, ended = l.failures, false
  local peak = total(before, failed)
  l.failures = peak
  if ok > 0 then
    peak = math.max(total(before, head), longest)
    ended = before + failed > tail
    l.failures = tail
  end
  if ended then
    l.run, l.in_run = l.run + 1, 0
  end
  l.successes = total(failed > 0 and 0 or l.successes, trailing)
  announce = announce or (l.failures > 0 and (before == 0 or ended))
  if l.max_failures > 0 then
    add_failures(12 + slices * 5, tail)
  end
  return peak, failed
end

local function save()
  put_counts()
  for field, counts in pairs(buckets) do
    if counts.changed then
      put(field, sums_text(counts))
    end
  end
  mirror_run()
end

if slices == 0 or corrupt or not admit() then
  return unchanged()
end
load_window()
local peak, failed = enter_batch()
if l.max_reporters > 0 and failed > 0 then
  note_reporter(now - tonumber(ARGV[10]))
end
if corrupt then
  return remove_corrupt()
end
save()
return answer({applied = true, peak = peak})
