local pico, nn = require "pico", require "nn"
local sum = pico.sum
local m = pico.model "t"
m:axes { hidden = 8, ffn = 16, vocab = 65, position = 32 }
local tokens, targets = m:input "tokens", m:input "targets"
local embed = m("embed", "vocab hidden")
local x = embed { vocab = tokens }
m:loss(nn.cross_entropy(sum("hidden", x * embed), targets))
return {}
