-- The same functions and the operators as Lua has them: each an op of its own.
local pico = require "pico"
local sum = pico.sum

local m = pico.model "functions_lua"
m:axes { vocab = 7, d = 3 }
m:input "targets"
local x = m("embed", "vocab d") { vocab = m:input "tokens" }
local p = x * x + 0.3
local results = {
  pico.exp(x), pico.log(p), pico.sqrt(p), pico.rsqrt(p), pico.tanh(x), pico.sigmoid(x), pico.erf(x), pico.sin(x),
  pico.cos(x), pico.abs(x), x * pico.sign(x), x * pico.floor(x + x), x + x - 2, 2 - x, -x * 3, x / p, 1 / p, x / 4,
  p ^ 2, p ^ 0.5, p ^ -1.5, 2 ^ x, p ^ x, x ^ 3, pico.f32(x), x + pico.stop_gradient(2),
  pico.max(x, p), pico.min(p, x), pico.max(x, 0.1), pico.min(0.1, x),
}
local loss = 0
for i, y in ipairs(results) do loss = loss + sum("d", y * m("out" .. i, "d")) end
m:loss(loss)
return m
