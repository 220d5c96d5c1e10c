-- max and min: of two values, and over first, middle, last and several axes.
local pico = require "pico"
local sum = pico.sum

local two, clamped, first, middle, last, several, all, spread = pico.op [[
  two_values(x, y)           = max(x, y) * min(x + 0.2, 2*y)
  clamped(x)                 = min(max(x, -0.4), 0.6) * x
  over_first[a](x[.., a])    = max[a](x) * min[a](x)
  over_middle[b](x[.., b])   = max[b](sin(5*x)) - min[b](x*x)
  over_last[c](x[.., c])     = x * max[c](x)
  over_two[a, c](x[.., a, c]) = max[a, c](x) + min[c, a](2*x) * x
  over_all[a, b, c](x[.., a, b, c]) = max[b, a, c](x) * min[a, b, c](x)
  over_seq(x[.., seq])       = x * max[seq](x) + min[seq](x)
]]

local m = pico.model "extrema"
m:axes { vocab = 7, a = 2, b = 3, c = 5 }
m:input "targets"
local x = m("embed", "vocab a b c") { vocab = m:input "tokens" }
local y = x + m("shift", "b a c")
local p = m("mul", "c b a")
local loss = sum("a b c", (two(y, p) + clamped(y)) * p)
loss = loss + sum("b c", first("a", y) * m("first", "b c"))
loss = loss + sum("a c", middle("b", y) * m("middle", "a c"))
loss = loss + sum("a b c", last("c", y) * m("last", "a b c"))
loss = loss + sum("a b c", several("a c", y) * m("several", "a b c"))
loss = loss + all("a b c", y) + sum("a b c", spread(y) * p)
m:loss(loss)
return m
