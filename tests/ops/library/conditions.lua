-- Comparisons, and or not, where: masks on both sides, nested, of whole numbers and of floats, constant ones.
local pico = require "pico"
local sum = pico.sum

local ops = { pico.op [[
  less(x, y)      = where(x < y, x*x, x*y)
  less_equal(x, y) = where(x <= y, sin(x), 0) * (y + 2)
  greater(x, y)   = where(x > y, 0, exp(y)) * x
  not_equal(x, y) = where(x ~= y, x/(2 + y), 5)
  equal(x, y)     = where(floor(2*x) == floor(2*y), x*y, y)
  joined(x, y)    = where(x > 0 and y > 0, x*y, where(x < 0 or y < -0.5, x^2, y^2))
  negated(x, y)   = where(not (x > y) and not (x < -y), x, y^3)
  safe_root(x, y) = where(x > 0, sqrt(x), 0) * y + where(y > 0, log(y), y)
  both(x, y)      = where(x > y, x, y) - where(x > y, y, x)
  chosen(x, y)    = where(1 < 2, x, y) * where(2 == 3, x, y)
  counted(x, y)   = x * where(x > 0, 1, 0) + y * where(y > 0, 2, -1)
]] }
local causal = pico.op [[
  triangle(x[.., seq, k]) = where(index(k) < index(seq) or index(k) >= extent(k) - 1, x, 0.5) * where(index(seq) == 2, 0, x)
]]

local m = pico.model "conditions"
m:axes { vocab = 7, d = 3, k = 4 }
m:input "targets"
local tokens = m:input "tokens"
local x, y = m("x", "vocab d") { vocab = tokens }, m("y", "vocab d") { vocab = tokens }
local loss = 0
for i, op in ipairs(ops) do loss = loss + sum("d", op(x, y * m("in" .. i, "d")) * m("out" .. i, "d")) end
m:loss(loss + sum("k", causal(sum("d", x * m("square", "d k"))) * m("tail", "k")))
return m
