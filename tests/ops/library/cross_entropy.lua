-- Cross-entropy of a contraction, as models have it: targets that do not count (token 3), smoothing, z-loss.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "cross_entropy"
m:axes { vocab = 7, hidden = 4 }
local tokens, targets = m:input "tokens", m:input "targets"
local x = m("embed", "vocab hidden") { vocab = tokens }
local z = sum("hidden", x * m("head", "vocab hidden")) * 3
m:loss(nn.cross_entropy(z, targets) + nn.cross_entropy(pico.sin(z), targets, { smoothing = 0.1, z_loss = 0.05 }))
m:train { ignore = 3 }
return m
