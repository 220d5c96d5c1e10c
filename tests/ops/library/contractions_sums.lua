-- same as: contractions.lua
-- Contractions as sums that are no contractions: each product stands in a where.
local pico = require "pico"

local sum1, sum2 = pico.op [[
  plain_one[a](x, y)    = sum[a](where(index(a) >= 0, x*y, 0))
  plain_two[a, b](x, y) = sum[a, b](where(index(a) + index(b) >= 0, x*y, 0))
]]
-- sum(axes, x, y): of a product; sum(axes, x): of one value
local function sum(axes, x, y)
  if not y then return pico.sum(axes, x) end
  return (axes:find " " and sum2 or sum1)(axes, x, y)
end

local m = pico.model "contractions"
m:axes { vocab = 7, a = 2, b = 3, c = 4, d = 5, e = 2 }
m:input "targets"
local tokens = m:input "tokens"
local x = m("embed", "vocab a b") { vocab = tokens }
local y = pico.sin(x * m("sine", "b a"))
local loss = sum("c", sum("a b", y, m("ab_c", "a b c")) * m("c", "c"))
loss = loss + sum("c", sum("a b", y, m("c_ba", "c b a")) * sum("a b", y, m("bca", "b c a")))
local left, right = sum("a", y, m("a_d", "a d")), sum("b", y, m("d_b", "d b"))
loss = loss + sum("b d", left * left * m("bd", "b d")) + sum("a d", right * m("da", "d a") * right)
local heads = sum("b", y, m("heads", "a d b"))
local heads2 = sum("b", y, m("heads2", "b d a"))
loss = loss + sum("a d", heads * heads2 * heads)
local scores = sum("b", y, y { seq = "key" })
loss = loss + sum("a key", scores * scores) * 0.1
local mixed = sum("key", scores, heads { seq = "key" })
loss = loss + sum("a d", mixed * m("mixed", "d a"))
local over = sum("a b", y, y { seq = "key" })
loss = loss + sum("key", over * over * over) * 0.1
local pooled = sum("seq", y, heads)
loss = loss + sum("a b d", pooled * pooled * 0.1)
local embed = m("tied", "vocab b")
local z = sum("b", left { d = 1 }, embed)
loss = loss + sum("vocab", z * z * m("vocab", "vocab")) + sum("b", embed { vocab = tokens } * left { d = 2 })
loss = loss + sum("vocab b", embed * embed) * loss * 0.01
local w = m("split", "(e d) b")
loss = loss + sum("d", sum("b", left { d = 0 }, w { e = 1 }) * m("picked", "d"))
loss = loss + sum("e d", sum("b", y { a = 1 }, w) ^ 2)
m:loss(loss)
return m
