-- Contractions: weights in both orders, batch axes, several summed axes in any order, operands that lie badly for a GEMM,
-- a parameter in three uses, both operands computed.
local pico = require "pico"
local sum = pico.sum

local m = pico.model "contractions"
m:axes { vocab = 7, a = 2, b = 3, c = 4, d = 5, e = 2 }
m:input "targets"
local tokens = m:input "tokens"
local x = m("embed", "vocab a b") { vocab = tokens }
local y = pico.sin(x * m("sine", "b a"))
local loss = sum("c", sum("a b", y * m("ab_c", "a b c")) * m("c", "c"))
loss = loss + sum("c", sum("a b", y * m("c_ba", "c b a")) * sum("a b", y * m("bca", "b c a")))
-- one summed axis, the other in front of or behind it
local left, right = sum("a", y * m("a_d", "a d")), sum("b", y * m("d_b", "d b"))
loss = loss + sum("b d", left * left * m("bd", "b d")) + sum("a d", right * m("da", "d a") * right)
-- batch axes: of weights by head, and of one value with another
local heads = sum("b", y * m("heads", "a d b"))
local heads2 = sum("b", y * m("heads2", "b d a"))
loss = loss + sum("a d", heads * heads2 * heads)
local scores = sum("b", y * y { seq = "key" })
loss = loss + sum("a key", scores * scores) * 0.1
local mixed = sum("key", scores * heads { seq = "key" })
loss = loss + sum("a d", mixed * m("mixed", "d a"))
local over = sum("a b", y * y { seq = "key" })
loss = loss + sum("key", over * over * over) * 0.1
-- summed over the sequence, and over batch axes apart from each other
local pooled = sum("seq", y * heads)
loss = loss + sum("a b d", pooled * pooled * 0.1)
-- tied: looked up, contracted with, and read as it is
local embed = m("tied", "vocab b")
local z = sum("b", left { d = 1 } * embed)
loss = loss + sum("vocab", z * z * m("vocab", "vocab")) + sum("b", embed { vocab = tokens } * left { d = 2 })
loss = loss + sum("vocab b", embed * embed) * loss * 0.01
-- a picked and a split operand
local w = m("split", "(e d) b")
loss = loss + sum("d", sum("b", left { d = 0 } * w { e = 1 }) * m("picked", "d"))
loss = loss + sum("e d", sum("b", y { a = 1 } * w) ^ 2)
m:loss(loss)
return m
