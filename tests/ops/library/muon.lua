-- differences: no
-- steps: 2
-- Muon for matrices: momentum, two iterations of Newton-Schulz; plain descent for the rest.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "muon"
m:axes { vocab = 7, hidden = 4 }
local tokens, targets = m:input "tokens", m:input "targets"
local x = m("embed", "vocab hidden") { vocab = tokens } + m("bias", "hidden")
m:loss(nn.cross_entropy(sum("hidden", x * m("head", "vocab hidden")), targets))
local descend, matrix = pico.op [[
  descend(w[..], g[..]; lr) =
      w' = w - lr*g
  muon_end(w[row, col], u[row, col]; lr) =
      w' = w - lr*u
]]
m:optimizer(function()
  local lr = m:scalar("lr", 0.1)
  for i, p in ipairs(m.params) do
    if i == 2 then descend(p, p.grad, { lr = lr })
    else
      local w, g, s = p { vocab = "row", hidden = "col" }, p.grad { vocab = "row", hidden = "col" },
                      p:state "momentum" { vocab = "row", hidden = "col" }
      local _, u = nn.muon_start(g, s, { beta = 0.9 })
      matrix(w, nn.newton_schulz(nn.newton_schulz(u)), { lr = lr })
    end
  end
end)
m:train { lr = 0.5 }
return m
