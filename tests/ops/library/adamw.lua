-- differences: no
-- steps: 2
-- The standing optimizer, clipped, with both decays.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "adamw"
m:axes { vocab = 7, hidden = 4 }
local tokens, targets = m:input "tokens", m:input "targets"
local x = m("embed", "vocab hidden") { vocab = tokens } + m("bias", "hidden")
m:loss(nn.cross_entropy(sum("hidden", x * m("head", "vocab hidden")), targets))
m:train { lr = 0.01, beta1 = 0.8, beta2 = 0.9, eps = 1e-2, clip = 0.05, weight_decay = 0.1, weight_decay_1d = 0.05 }
return m
