-- same as: layers.lua
-- The same model without layers.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "layers"
m:axes { vocab = 7, hidden = 4, ffn = 6 }
local tokens, targets = m:input "tokens", m:input "targets"
local embed, shared = m("embed", "vocab hidden"), m("shared", "hidden")
local function block(p, x, first)
  local h = nn.rmsnorm(x, shared) * p("scale", "hidden")
  h = nn.silu(sum("hidden", h * p("up", "ffn hidden")) + p("bias", "ffn"))
  return x + sum("ffn", h * p("down", "hidden ffn")) + first * shared
end
local start = embed { vocab = tokens }
local x = start
for i = 1, 3 do x = block(function(name, axes) return m("layer" .. i .. "." .. name, axes) end, x, start) end
m:loss(nn.cross_entropy(sum("hidden", nn.rmsnorm(x, shared) * embed), targets))
return m
