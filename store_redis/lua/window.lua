-- What a Closed ledger's window holds, which changes as time passes. It follows ledger.lua in every script.

local oldest = -1 -- what happened at or before this is outside the window
local reporters = {}

-- fetch reads fields; after clear there are none.
local function fetch(fields)
  if rewrite then
    return {}
  end
  return redis.call('HMGET', key, unpack(fields))
end

-- total adds two counts; they stop at the limit.
local function total(a, b)
  return math.min(a + b, LIMIT)
end

local function add(to, counts)
  for i = 1, 4 do
    to[i] = total(to[i], counts[i])
  end
end

-- The window's sums: 20 buckets with a running total. A bucket leaves as a whole, when its beginning does.

local length, buckets = 1, {} -- of a bucket; those that have been read

-- bucket_fields names the last n buckets of the ring, the newest being i.
local function bucket_fields(i, n)
  local fields = {}
  for back = n - 1, 0, -1 do
    fields[#fields + 1] = 'b' .. (i - back) % BUCKETS
  end
  return fields
end

-- recount computes the sums from all buckets: once a sum has stopped at the limit, nothing can be subtracted from it.
local function recount()
  l.sums = {0, 0, 0, 0}
  local fields = bucket_fields(l.newest, BUCKETS)
  local values = fetch(fields)
  for i, field in ipairs(fields) do
    buckets[field] = buckets[field] or four(values[i])
    add(l.sums, buckets[field])
  end
end

-- advance_window moves the ring on to now, and takes the buckets that have left the window out of the sums.
local function advance_window()
  length = math.max(math.floor(l.window / BUCKETS), 1)
  local newest = math.floor(now / length)
  local steps = math.min(newest - l.newest, BUCKETS)
  if l.newest - newest >= BUCKETS then -- the clock was set back, by a window or more
    steps = BUCKETS
    l.first, l.in_run = l.next, 0
  elseif steps <= 0 then
    return
  end
  local fields = bucket_fields(newest, steps)
  local old = fetch(fields)
  local stopped = false
  for i, field in ipairs(fields) do
    buckets[field] = {0, 0, 0, 0}
    if old[i] then
      unset[#unset + 1] = field
      local counts = four(old[i])
      for j = 1, 4 do
        stopped = stopped or l.sums[j] >= LIMIT
        l.sums[j] = math.max(l.sums[j] - counts[j], 0)
      end
    end
  end
  l.newest = newest
  if steps == BUCKETS then
    l.sums = {0, 0, 0, 0}
  elseif stopped then
    recount()
  end
end

-- The times of the last failures, in order.

local function failed_at(i)
  return int(parts(fetch({'f' .. i % l.max_failures})[1], '^(%d+)$'))
end

-- expire drops the times of failures that have left the window.
local function expire()
  local low, high = l.first, l.next
  if low == high or failed_at(low) > oldest then
    return
  end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if failed_at(middle) > oldest then
      high = middle
    else
      low = middle + 1
    end
  end
  l.first = low
  l.in_run = math.min(l.in_run, l.next - low)
end

-- The nodes that failed last, as many as the shape asks for.

local function read_reporters()
  local fields = {}
  for i = 1, l.max_reporters do
    fields[i] = 'r' .. i
  end
  local values = fetch(fields)
  for i = 1, l.max_reporters do
    local at, who = parts(values[i], '^(%d+):(.*)$')
    reporters[i] = {at = int(at), who = who}
    if who and reporters[i].at > oldest then
      l.reporters = l.reporters + 1
    end
  end
end

-- load_window computes what the window holds now.
local function load_window()
  if corrupt or l.epoch == 0 or l.state ~= 'closed' then
    return
  end
  if l.window > 0 then
    oldest = now - l.window
    advance_window()
    if l.max_failures > 0 then
      expire()
    end
  end
  if l.max_reporters > 0 then
    read_reporters()
  end
end

-- unchanged answers an operation that changes nothing.
local function unchanged()
  load_window()
  if l.state == 'closed' then
    set, unset = {}, {}
  end
  return answer({})
end
