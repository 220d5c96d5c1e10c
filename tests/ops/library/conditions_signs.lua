-- same as: conditions.lua
-- Conditions as numbers made of signs: 1 where x > 0, else 0.
local pico = require "pico"
local sum = pico.sum

local ops = { pico.op [[
  above(x) = (1 + sign(x)) / 2
  choose(c, a, b) = b + c * (a - b)
  less_(x, y)      = choose(above(y - x), x*x, x*y)
  less_equal_(x, y) = above(y - x) * sin(x) * (y + 2)
  greater_(x, y)   = above(y - x) * exp(y) * x
  not_equal_(x, y) = x/(2 + y)
  equal_(x, y)     = choose(1 - abs(sign(floor(2*x) - floor(2*y))), x*y, y)
  joined_(x, y)    =
      p = above(x)
      q = above(y)
      choose(p*q, x*y, choose(1 - p * above(y + 0.5), x*x, y*y))
  negated_(x, y)   = choose((1 - above(x - y)) * (1 - above(-y - x)), x, y*y*y)
  safe_root_(x, y) = above(x) * sqrt(abs(x)) * y + choose(above(y), log(abs(y)), y)
  both_(x, y)      = abs(x - y)
  chosen_(x, y)    = x * y
  counted_(x, y)   = x * above(x) + y * (3*above(y) - 1)
]] }
table.remove(ops, 1)
table.remove(ops, 1)
local causal = pico.op [[
  triangle_(x[.., seq, k]) =
      seen = max(where(index(k) < index(seq), 1, 0), where(index(k) == 3, 1, 0))
      (seen * x + (1 - seen) * 0.5) * (x - where(index(seq) == 2, x, 0))
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
