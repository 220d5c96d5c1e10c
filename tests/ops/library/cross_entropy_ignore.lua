-- Targets of another `ignore`; all positions count but those; no contraction before it.
local pico, nn = require "pico", require "nn"

local m = pico.model "cross_entropy_ignore"
m:axes { vocab = 6, vocab_in = 6 }
local tokens = m:input("tokens")
local targets = m:input("targets", { ignore = 2 })
local z = m("table", "1 vocab vocab_in") { vocab_in = tokens }
m:loss(nn.cross_entropy(z, targets, { ignore = 2, smoothing = 0.2 }))
return m
