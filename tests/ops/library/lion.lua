-- differences: no
-- steps: 2
-- Lion.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "lion"
m:axes { vocab = 7, hidden = 4 }
local tokens, targets = m:input "tokens", m:input "targets"
local x = m("embed", "vocab hidden") { vocab = tokens } + m("bias", "hidden")
m:loss(nn.cross_entropy(sum("hidden", x * m("head", "vocab hidden")), targets))
m:optimizer(function()
  local o = m:scalars "lr beta1 beta2 weight_decay"
  for _, p in ipairs(m.params) do
    nn.lion(p, p.grad, p:state "exp_avg", { lr = o.lr, beta1 = o.beta1, beta2 = o.beta2, decay = o.weight_decay })
  end
end)
m:train { lr = 0.01, beta1 = 0.7, beta2 = 0.8, weight_decay = 0.2 }
return m
