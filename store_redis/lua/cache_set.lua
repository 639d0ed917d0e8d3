-- Keeps a value for a time, unless what is kept is of a call that started later.
--
-- KEYS[1] a hash; ARGV[1] when the call started, in microseconds since 1970, [2] the value, [3] how long, in milliseconds

local key, started = KEYS[1], ARGV[1]
local kept = redis.pcall('HGET', key, 'started')
if type(kept) == 'table' then -- not a hash
  redis.call('DEL', key)
  kept = false
end
if kept and string.match(kept, '^-?%d+$') and tonumber(kept) > tonumber(started) then
  return 0
end
redis.call('HSET', key, 'started', started, 'value', ARGV[2])
redis.call('PEXPIRE', key, ARGV[3])
return 1
