-- The common beginning of all scripts on a circuit: it reads the ledger, and defines how to change it and to answer.
--
-- KEYS[1]  the circuit's hash; KEYS[2] and KEYS[3], with the mirror only: its state key and its failures key
-- ARGV[1]  the channel, ARGV[2] the circuit's name, ARGV[3] the caller's shape, empty for a reader who has none; the rest
--          belongs to the operation
--
-- Times are microseconds of the server's clock, read once. All numbers are integers up to 2^53, which a Lua number holds
-- exactly. The fields of the hash are short, so that it stays a listpack:
--
--   epoch      number:state:since:until             until is the time of the next probe, 0 unless open
--   series     openings:progress:succeeded          succeeded: the highest number of a slot whose probe has succeeded; 0: none
--   shape      window:failures:reporters:config     what the ledger is kept for; window 0 is none
--   run        number:failures:successes            the run of failures, and the successes since the last failure
--   sums       successes:failures:ignored:slow      of the window
--   lately     reported_at:newest:first:next:in_run reported_at: when a report with that shape last came
--   b<i % 20>  as sums                              bucket i of the window, which has 20; the newest is lately's
--   f<i % failures>  time                           failure i; those from first to next-1 are kept, and the last in_run
--                                                   belong to the present run
--   r<i>       time:node                            a caller that failed lately
--   slot:<token>  lease:number                      lease: its end; number: above those of the slots given before in the epoch

local BUCKETS = 20
local LIMIT = 9007199254740992 -- 2^53: where counts stop
local HOUR = 3600000 -- ms
local LONGEST = 315360000000000 -- ten years: no caller asks for a longer time
local SMALL = 4294967295 -- 2^32-1: openings and progress are no larger
local MOST_FAILURES, MOST_REPORTERS = 1000000, 1000 -- no caller asks for more

local key, channel, name, shape = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local clock = math.floor(now / 1000)
-- Where epochs end. Circuits do not follow a ledger that is further ahead of the clock.
local ahead = clock + 24 * HOUR

-- corrupt is set when the hash is found to hold what no script of this package has written.
local corrupt = false

-- parts takes a field apart. A field that is not there has no parts.
local function parts(text, pattern)
  if not text then
    return
  end
  local a, b, c, d, e = string.match(text, pattern)
  corrupt = corrupt or not a
  return a, b, c, d, e
end

-- int reads a part, which is no larger than most; one that is not there is 0.
local function int(digits, most)
  local n = tonumber(digits or 0)
  if n > (most or LIMIT) then
    corrupt = true
    return 0
  end
  return n
end

-- optional reads a last part that may be missing, which is then 0.
local function optional(digits)
  return int(digits ~= '' and digits or 0)
end

local function three(text)
  local a, b, c = parts(text, '^(%d+):(%d+):(%d+)')
  return int(a), int(b), int(c)
end

local function four(text)
  local a, b, c, d = parts(text, '^(%d+):(%d+):(%d+):(%d+)')
  return {int(a), int(b), int(c), int(d)}
end

-- remove_corrupt removes what cannot be read. The circuits then restore the ledger from what they were last given.
local function remove_corrupt()
  redis.call('DEL', key)
  return redis.error_reply('CORRUPT the ledger held what could not be read, and has been removed')
end

local stored = redis.pcall('HMGET', key, 'epoch', 'series', 'shape', 'run', 'sums', 'lately')
if stored.err then
  if string.find(stored.err, 'WRONGTYPE') then
    return remove_corrupt()
  end
  return stored
end

local l = {state = 'closed', tokens = {}, numbers = {}, live = 0, reporters = 0}
do
  local number, state, since, open_until = parts(stored[1], '^(%d+):([%a-]+):(%d+):(%d+)')
  if number then
    l.epoch, l.state, l.since, l.open_until = int(number, ahead), state, int(since), int(open_until)
    corrupt = corrupt or l.epoch == 0 or (state ~= 'closed' and state ~= 'half-open' and state ~= 'open')
    corrupt = corrupt or l.open_until - l.since > LONGEST
  else
    l.epoch, l.since, l.open_until = 0, now, 0
  end
end
do
  local openings, progress, succeeded = parts(stored[2], '^(%d+):(%d+):?(%d*)')
  l.openings, l.progress, l.succeeded = int(openings, SMALL), int(progress, SMALL), optional(succeeded)
end
l.shape = stored[3] or shape
l.run, l.failures, l.successes = three(stored[4])
l.run = math.max(l.run, 1)
l.sums = four(stored[5])
do
  local reported_at, newest, first, nxt, in_run = parts(stored[6], '^(%d+):(%d+):(%d+):(%d+):(%d+)')
  l.reported_at, l.newest = math.min(int(reported_at), now), int(newest)
  l.first, l.next, l.in_run = int(first), int(nxt, LIMIT - 1), int(in_run) -- at the limit, next would not move on
  corrupt = corrupt or l.in_run > l.next - l.first
end

local function read_shape()
  local w, f, r = parts(l.shape ~= '' and l.shape, '^(%d+):(%d+):(%d+):')
  l.window, l.max_failures, l.max_reporters = int(w, LONGEST), int(f, MOST_FAILURES), int(r, MOST_REPORTERS)
end
read_shape()
corrupt = corrupt or (stored[3] and l.next - l.first > l.max_failures)

-- What is to be written. Nothing is written before all has been read.
local set, unset = {}, {}
local rewrite = false -- delete the hash before writing
local announce = false -- publish the ledger after writing

local function put(field, value)
  set[#set + 1] = field
  set[#set + 1] = value
end

local function put_epoch()
  put('epoch', string.format('%d:%s:%d:%d', l.epoch, l.state, l.since, l.open_until))
end

local function put_series()
  put('series', string.format('%d:%d:%d', l.openings, l.progress, l.succeeded))
end

-- The server's clock has been set back: the epoch goes on from now, and every deadline keeps its distance to the start.
local setback = math.max(l.since - now, 0)
if setback > 0 then
  l.since = now
  l.open_until = math.max(l.open_until - setback, 0)
  put_epoch()
end

local function put_slot(token)
  put('slot:' .. token, string.format('%d:%d', l.tokens[token], l.numbers[token]))
end

-- The slots. An expired one is remembered, because its outcome still counts.
local function read_slots()
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local token = string.match(all[i], '^slot:(.*)$')
    if token then
      local lease, number = parts(all[i + 1], '^(%d+):?(%d*)')
      lease = math.max(int(lease) - setback, 0)
      corrupt = corrupt or lease - now > 2 * LONGEST -- twice: the clock may have been set back since
      l.tokens[token], l.numbers[token] = lease, optional(number)
      if lease > now then
        l.live = l.live + 1
      end
    end
  end
end
if l.state == 'half-open' then
  read_slots()
end

-- clear forgets all counts, and keeps the ledger for the caller's shape from now on.
local function clear()
  rewrite = true
  set = {}
  l.shape, l.reported_at = shape, now
  read_shape()
  l.failures, l.successes, l.sums, l.newest = 0, 0, {0, 0, 0, 0}, 0
  l.first, l.next, l.in_run = 0, 0, 0
  l.tokens, l.numbers, l.live, l.succeeded = {}, {}, 0, 0
end

-- above returns the number of a new epoch for a caller that knows of another; false if that is one that no Store has given.
local function above(known)
  local highest = math.max(l.epoch, known, clock - 1)
  return highest < ahead and highest + 1
end

-- begin starts an epoch; period is how long an open one lasts.
local function begin(number, state, openings, period)
  clear()
  l.epoch, l.state, l.since, l.openings, l.progress, l.run = number, state, now, openings, 0, 1
  l.open_until = state == 'open' and now + period or 0
  announce = true
end

-- ttl returns for how long the hash is kept, in milliseconds.
local function ttl()
  if l.state == 'open' then
    return math.max(math.ceil((l.open_until - now) / 1000), 0) + HOUR
  end
  if l.state == 'half-open' then
    local longest = 0
    for _, lease in pairs(l.tokens) do
      longest = math.max(longest, lease - now)
    end
    return math.ceil(longest / 1000) + HOUR
  end
  if l.window == 0 then
    return 24 * HOUR
  end
  return math.ceil(l.window / 1000) + HOUR
end

-- in_portions calls a command with any number of arguments: Lua's stack takes fewer than 8,000 at once.
local function in_portions(command, list)
  for i = 1, #list, 4000 do
    redis.call(command, key, unpack(list, i, math.min(i + 3999, #list)))
  end
end

local function sums_text(counts)
  return string.format('%d:%d:%d:%d', counts[1], counts[2], counts[3], counts[4])
end

local function put_counts()
  put('run', string.format('%d:%d:%d', l.run, l.failures, l.successes))
  put('sums', sums_text(l.sums))
  put('lately', string.format('%d:%d:%d:%d:%d', l.reported_at, l.newest, l.first, l.next, l.in_run))
end

-- write_anew puts the fields that every operation reads first in the hash, where they are found fastest.
local function write_anew()
  redis.call('DEL', key)
  local rest = set
  set = {}
  put_epoch()
  put_series()
  put('shape', l.shape)
  if l.state == 'closed' then
    put_counts()
  end
  in_portions('HSET', set)
  set = rest
end

local function write()
  if rewrite then
    write_anew()
  else
    in_portions('HDEL', unset)
    if setback > 0 then -- every lease has been moved
      for token in pairs(l.tokens) do
        put_slot(token)
      end
    end
  end
  in_portions('HSET', set)
  redis.call('PEXPIRE', key, string.format('%d', ttl()))
end

-- mirror_epoch and mirror_run keep two plain keys for others to read: whether the circuit is open, and the length of the run.
local function mirror_epoch()
  if not KEYS[2] then
    return
  end
  local left = l.state == 'open' and math.ceil((l.open_until - now) / 1000) or 0
  if left > 0 then
    redis.call('SET', KEYS[2], 'OPEN', 'PX', string.format('%d', left))
  else
    redis.call('DEL', KEYS[2])
  end
  if l.state == 'closed' then
    redis.call('DEL', KEYS[3])
  end
end

local function mirror_run()
  if not KEYS[3] then
    return
  end
  if l.failures == 0 then
    redis.call('DEL', KEYS[3])
    return
  end
  local px = l.window > 0 and math.ceil(l.window / 1000) or 60000
  redis.call('SET', KEYS[3], string.format('%d', l.failures), 'PX', string.format('%d', px))
end

local codes = {closed = 0, ['half-open'] = 1, open = 2}

-- view is the ledger as all callers see it; the reply of every operation begins with it.
local function view()
  return {
    clock, l.epoch, codes[l.state], now - l.since, l.state == 'open' and math.max(l.open_until - now, 0) or 0,
    l.openings, l.progress, l.live, l.run,
    l.sums[1], l.sums[2], l.sums[3], l.sums[4], l.failures, l.successes,
    l.next - l.first, l.in_run, l.reporters,
  }
end

local function publish()
  local text = view()
  for i = 1, #text do
    text[i] = string.format('%d', text[i])
  end
  redis.call('PUBLISH', channel, table.concat(text, ' ') .. '|' .. name)
end

-- foreign says whether the ledger is kept for another configuration than the caller's.
local function foreign()
  if shape == l.shape then
    return false
  end
  local config = '^%d+:%d+:%d+:(.*)$'
  return shape ~= '' and l.epoch > 0 and string.match(shape, config) ~= string.match(l.shape, config)
end

-- answer writes what has changed, publishes the ledger if watchers must know, and returns the reply: the view of the ledger
-- and what the operation has done.
local function answer(done)
  if corrupt then
    return remove_corrupt()
  end
  if rewrite or #set > 0 or #unset > 0 then
    write()
  end
  if announce then
    publish()
  end
  local reply = view()
  reply[#reply + 1] = done.peak or 0
  reply[#reply + 1] = foreign() and 1 or 0
  reply[#reply + 1] = done.applied and 1 or 0
  reply[#reply + 1] = done.granted or 0
  reply[#reply + 1] = done.retry or 0
  return reply
end
