-- args: -D width=0
local pico, nn = require "pico", require "nn"
local sum = pico.sum
local c = pico.config { width = 8, layers = 2, act = pico.only "silu", scaling = pico.only(pico.null), eps = 1e-5,
  inner = function(c) return 4 * c.width end, tied = pico.optional(true) }
local m = pico.model "t"
m:axes { hidden = c.width, ffn = 16, vocab = 65, position = 32 }
local tokens, targets = m:input "tokens", m:input "targets"
local embed = m("embed", "vocab hidden")
local x = embed { vocab = tokens }
m:loss(nn.cross_entropy(sum("hidden", x * embed), targets))
return m
