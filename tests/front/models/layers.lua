-- Layers: odd names, several tensors across, parameters of a loop; results of an op with several.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model("layers", { init = 0.1 })
m:axes { vocab = 11, hidden = 6 }
local tokens, targets = m:input "tokens", m:input("targets", { ignore = 3 })
local embed = m("embed", "vocab hidden")
local s, n = embed { vocab = tokens }, nil
n = s
local function block(p, s, n)
  local y = sum("hidden", n * p("w", "hidden_out:6 hidden")) { hidden_out = "hidden" }
  return nn.add_rmsnorm(s, nn.silu(y), p("gain", "hidden", { init = "ones", decay = true }))
end
for i, name in ipairs { [["quoted"]], [[back\slash]], "ümlaut", "a b" } do s, n = m:layer(name .. i, block, s, n) end
m:loss(nn.cross_entropy(sum("hidden", n * embed), targets, { smoothing = 0.1, z_loss = 1e-4 }))
m:shard { vocab = "tp", hidden = false }
m:train { steps = 10, lr = 1e-2, data = { "a.txt", "b.txt" }, shuffle = false }
return m
