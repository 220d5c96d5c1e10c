local t = setmetatable({}, {})
getmetatable(t).__index = function(t, k) return t[k .. "x"] end
local x = t.a
