-- Gradients of one's own that are the derivatives: several tensors and results, names of the op, operands that lack axes,
-- zero for one of them, split axes, an op with a gradient inside an op.
local pico = require "pico"
local sum = pico.sum

local swish, scaled, two, turned, outer = pico.op [[
  swish(x) =
      s = sigmoid(x)
      x * s
  grad swish(d) = d * (s + x*s*(1 - s))

  scaled(x[.., d], w[d], n[..]) = x * w * sin(n)
  grad scaled(g) = g * w * sin(n), sum[..](g * x * sin(n)), sum[d](g * x * w) * cos(n)

  pair(x, y) =
      e = exp(x)
      e * y, e + y
  grad pair(g, h) = e * (g*y + h), g*e + h

  turned(x[.., d = (two: 2, half)]) = where(index(two) == 0, -x{two = 1}, x{two = 0})
  grad turned(g) = where(index(two) == 0, g{two = 1}, -g{two = 0})

  outer(x, y) = swish(x*y) * y
]]

local m = pico.model "own_derivative"
m:axes { vocab = 7, d = 4 }
m:input "targets"
local tokens = m:input "tokens"
local x = m("x", "vocab d") { vocab = tokens }
local n = m("n", "vocab") { vocab = tokens }
local loss = sum("d", swish(x) * m("swish", "d"))
loss = loss + sum("d", scaled(x, m("w", "d"), n) * m("scaled", "d"))
local a, b = two(x, x * m("pair", "d"))
loss = loss + sum("d", a * b * m("pair.out", "d"))
loss = loss + sum("d", turned(x) * x * m("turned", "d")) + sum("d", outer(x, m("outer", "d")))
m:loss(loss)
return m
