-- graphs/examples/muon.lua: the MLP, trained with Muon for its large matrix and AdamW for the rest.
--
-- An optimizer is a Lua function over the parameters. Axes are merged and renamed on the way in (Muon is about matrices,
-- in_dim by hidden), and x' finds its way back through these views to the parameter as it is stored.
local pico, nn = require "pico", require "nn"
local m = require "mlp"

local descend = pico.op [[
  descend(w[..], u[..]; lr, decay) =
      w' = w - lr*(u + decay*w)
]]

m:optimizer(function(m)
  local o = m:scalars "lr beta1 beta2 eps step weight_decay clip"
  local square = 0
  for _, p in ipairs(m.params) do square = square + nn.sum_of_squares(p.grad) end
  m:report("grad_norm", pico.sqrt(square))
  local factor = nn.clip_factor(square, { clip = o.clip })
  for _, p in ipairs(m.params) do
    if p.full == "fc1.weight" then
      local g, mom = p.grad:view "(tap feature) -> in_dim", p:state "momentum":view "(tap feature) -> in_dim"
      local _, u = nn.muon_start(g { in_dim = "row", hidden = "col" }, mom { in_dim = "row", hidden = "col" }, { beta = 0.95 })
      for _ = 1, 5 do u = nn.newton_schulz(u) end
      descend(p, u { row = "in_dim", col = "hidden" }:view "in_dim -> (tap feature)", { lr = o.lr, decay = o.weight_decay })
    else
      nn.adamw(p, p.grad, p:state "exp_avg", p:state "exp_avg_sq", factor,
               { lr = o.lr, beta1 = o.beta1, beta2 = o.beta2, eps = o.eps, step = o.step, decay = p.decay and o.weight_decay or 0 })
    end
  end
end)
return m
