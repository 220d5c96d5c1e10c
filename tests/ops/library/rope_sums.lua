-- same as: rope.lua
-- Rotary positions without split axes: the partner of position i is half an axis away, or beside it.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local rope, interleaved, llama3, alibi = pico.op [[
  apart(x[.., seq, head_dim]; theta) =
      half    = extent(head_dim) / 2
      first   = index(head_dim) < half
      k       = where(first, index(head_dim), index(head_dim) - half)
      angle   = index(seq) * exp(-log(theta) * k / half)
      partner = where(first, -x{head_dim = head_dim + 3}, x{head_dim = head_dim - 3})
      x * cos(angle) + partner * sin(angle)
  beside(x[.., seq, head_dim]; theta) =
      k       = floor(index(head_dim) / 2)
      angle   = index(seq) * exp(-log(theta) * k / (extent(head_dim) / 2))
      partner = where(index(head_dim) == 2*k, -x{head_dim = head_dim + 1}, x{head_dim = head_dim - 1})
      x * cos(angle) + partner * sin(angle)
  scaled(x[.., seq, head_dim]; theta, factor, low, high, context) =
      k       = where(index(head_dim) < 3, index(head_dim), index(head_dim) - 3)
      f       = exp(-log(theta) * k / 3)
      turns   = context * f / (2*pi)
      smooth  = where(turns < low, 0, where(turns > high, 1, (turns - low) / (high - low)))
      angle   = index(seq) * f * (smooth + (1 - smooth) / factor)
      partner = where(index(head_dim) < 3, -x{head_dim = head_dim + 3}, x{head_dim = head_dim - 3})
      x * cos(angle) + partner * sin(angle)
  falling(s[.., heads, seq, key]) =
      s + exp(-log(2) * 8 * (index(heads) + 1) / extent(heads)) * (index(key) - index(seq))
]]

local m = pico.model "rope"
m:axes { vocab = 7, heads = 3, head_dim = 6 }
m:input "targets"
local tokens = m:input "tokens"
local x = m("x", "vocab heads head_dim") { vocab = tokens }
local loss = 0
local function add(name, r) loss = loss + sum("heads head_dim", r * r * m(name, "heads head_dim") + r) end
add("rope", rope(x, { theta = 10000 }))
add("theta", rope(x, { theta = 100 }))
add("interleaved", interleaved(x, { theta = 50 }))
add("llama3", llama3(x, { theta = 500, factor = 8, low = 1, high = 4, context = 32 }))
local scores = sum("head_dim", x * x { seq = "key" })
local biased = nn.softmax("key", alibi(scores))
m:loss(loss + sum("heads key", biased * scores * m("alibi", "heads") ))
return m
