-- differences: no
-- steps: 2
-- Averaged weights beside plain descent: the average takes the old ones.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "ema"
m:axes { vocab = 7, hidden = 4 }
local tokens, targets = m:input "tokens", m:input "targets"
local x = m("embed", "vocab hidden") { vocab = tokens } + m("bias", "hidden")
m:loss(nn.cross_entropy(sum("hidden", x * m("head", "vocab hidden")), targets))
local descend = pico.op [[ descend(w[..], g[..]; lr) =
  w' = w - lr*g ]]
m:optimizer(function()
  local lr = m:scalar("lr", 0.1)
  for _, p in ipairs(m.params) do
    nn.ema(p:state "average", p, { decay = 0.9 })
    descend(p, p.grad, { lr = lr })
  end
end)
m:train { lr = 0.5 }
return m
