-- The smallest model that has a layer, a norm, a residual, a tied head and a loss: the passes' texts are compared for it.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "tiny"
m:axes { vocab = 11, hidden = 6, ffn = 8 }

local function block(p, x)
  local h = nn.rmsnorm(x, p("norm", "hidden", { init = "ones" }))
  return x + sum("ffn", nn.silu(sum("hidden", h * p("up", "ffn hidden"))) * p("down", "hidden ffn"))
end

local tokens, targets = m:input "tokens", m:input "targets"
local embed = m("embed", "vocab hidden")
local x = m:layer("layer", block, embed { vocab = tokens })
m:loss(nn.cross_entropy(sum("hidden", x * embed), targets))
return m
