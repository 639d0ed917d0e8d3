-- Keeps a value for a time, unless what is kept is of a call that started later.
--
-- KEYS[1] a hash; ARGV[1] when the call started, in microseconds since 1970, [2] the value, [3] how long, in milliseconds

local DAY = 86400000000 -- microseconds: no caller's clock is that far ahead of the server's

local key, started = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local kept = redis.pcall('HGET', key, 'started')
if type(kept) == 'table' then -- not a hash
  redis.call('DEL', key)
  kept = false
end
local at = kept and string.match(kept, '^-?%d+$') and tonumber(kept)
if at and at > tonumber(started) and at <= now + DAY then
  return 0
end
redis.call('HSET', key, 'started', started, 'value', ARGV[2])
redis.call('PEXPIRE', key, ARGV[3])
return 1
