-- An optimizer: a scalar of one's own, states, views of parameters with a way back, parameters left alone.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "optimizer"
m:axes { vocab = 12, hidden = 6 }
local tokens, targets = m:input "tokens", m:input "targets"
local embed = m("embed", "vocab hidden")
local w = m("w", "(a:2 b:3) hidden")
local x = embed { vocab = tokens }
local y = sum("hidden", x * w):view "(a b) -> hidden"
m:loss(nn.cross_entropy(sum("hidden", nn.gelu(y) * embed), targets))

m:optimizer(function(m)
  local o = m:scalars "lr beta1 step weight_decay"
  local pull = m:scalar("pull", 0.5)
  local square = 0
  for _, p in ipairs(m.params) do square = square + nn.sum_of_squares(p.grad) end
  m:report("grad_norm", pico.sqrt(square))
  m:report("pull_now", pull * o.lr / (1 + o.step))
  local p = m.params[1]
  local old = p:state "average" { vocab = "v", hidden = "vocab_part" }
  nn.ema(p, p.grad, { decay = 0.9 })
  nn.ema(old, p { vocab = "v", hidden = "vocab_part" }, { decay = pull })
  nn.lion(m.params[2]:view "(a b) -> row", m.params[2].grad:view "(a b) -> row", m.params[2]:state "m":view "(a b) -> row",
          { lr = o.lr, beta1 = o.beta1, beta2 = 0.99, decay = o.weight_decay })
end)
return m
