-- Gradients of one's own: with open axes that an argument lacks, with split axes, called inside another op.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local gated, rounded = pico.op [[
  scale(x[.., hidden], gain[hidden]) =
      y = x * gain
      y
  grad scale(d) =
      d * gain, sum[..](d * x)
  swap(x[.., hidden = (two: 2, half)]) = x{two = 1 - index(two) + 0*index(half)}
  grad swap(d) = d{two = 1 - index(two) + 0*index(half)}
  inner(x[.., hidden], gain[hidden]) = scale(x, gain)^2 + swap(x)
]]

local m = pico.model "own_gradient"
m:axes { vocab = 11, hidden = 6 }
local tokens, targets = m:input "tokens", m:input "targets"
local embed = m("embed", "vocab hidden")
local x = embed { vocab = tokens }
x = nn.round_through(x) + gated(x, m("g", "hidden"))
local _, inner = rounded, nil
m:loss(nn.cross_entropy(sum("hidden", rounded(x) * embed), targets))
return m
