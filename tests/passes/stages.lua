-- What pipeline stages find hard, in one small model: a value that all layers read (relayed, its cotangents added on the way
-- back), parameters that all layers share,
-- an optimizer with norms of each parameter, and sums and largest elements of all of them.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local c = pico.config { layers = 4 }
local m = pico.model "stages"
m:axes { vocab = 12, hidden = 8, ffn = 12, one = 1 }

local ops = pico.library [[
  largest(g[..]) = f32(max[..](abs(g)))
  lamb(w[..], g[..], m[..]; lr, beta) =
      m' = beta*m + g
      r  = sqrt(sum[..](w^2)) / (sqrt(sum[..](m'^2)) + 1e-6)
      w' = w - lr*r*m'
  scaled(w[..], g[..], factor[]; lr) =
      w' = w - lr*factor*g
]]

local tokens, targets = m:input "tokens", m:input "targets"
local embed = m("embed", "vocab hidden")
local first = embed { vocab = tokens }
local shared, temperature = m("shared", "hidden", { init = "ones" }), m("temperature", "one", { init = "ones" })

local function block(p, x)
  local h = nn.rmsnorm(x, shared)
  x = x + sum("ffn", nn.silu(sum("hidden", h * p("up", "ffn hidden"))) * p("down", "hidden ffn"))
  return x + first * 0.5 * sum("one", temperature)
end

local x = first
for i = 0, c.layers - 1 do x = m:layer("layer" .. i, block, x) end
m:loss(nn.cross_entropy(sum("hidden", x * embed), targets))

m:optimizer(function(model)
  local square, most = 0, 0
  for _, p in ipairs(model.params) do
    square = square + nn.sum_of_squares(p.grad)
    most = pico.max and pico.max(most, ops.largest(p.grad)) or most + ops.largest(p.grad)
  end
  model:report("grad_norm", pico.sqrt(square))
  model:report("largest", most)
  local factor = nn.clip_factor(square, { clip = 0.3 })
  for i, p in ipairs(model.params) do
    if i % 2 == 0 then ops.lamb(p, p.grad, p:state "m", { lr = 0.1, beta = 0.9 })
    else ops.scaled(p, p.grad, factor, { lr = 0.1 }) end
  end
end)
return m
