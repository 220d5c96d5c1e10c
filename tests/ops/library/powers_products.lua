-- same as: powers.lua
-- Powers as products, logarithms and roots.
local pico = require "pico"
local sum = pico.sum

local ops = { pico.op [[
  power0_(x, p)  = p + x*p
  power1_(x, p)  = x * p
  power2_(x, p)  = x*x * p
  power3_(x, p)  = x*x*x + p
  power4_(x, p)  = (x + p)*(x + p) * ((x + p)*(x + p))
  power5_(x, p)  = x*p*x*p*x*p*x*p*x*p
  power6_(x, p)  = x*x*x*x*x*x / p
  power7_(x, p)  = x*x*x*x*x*x*x * p
  power8_(x, p)  = x*x*x*x*x*x*x*x * p
  power9_(x, p)  = p*p*p*p*p*p*p*p*p * x
  half_(x, p)    = sqrt(p) * x
  divided_(x, p) = exp(log(p)/3) * x
  minus1_(x, p)  = x / p
  minus15_(x, p) = rsqrt(p + x*x) / (p + x*x)
  tensor_(x, p)  = exp(x * log(p))
  both_(x, p)    = exp(x*p * log(p)) * x
  base2_(x, p)   = exp(x * log(2)) * p
  base_e_(x, p)  = exp(x*p * log(2.718))
  tower_(x, p)   = exp(x*x * log(p))
  whole_(x, p)   = exp(x * log(1 + int(3*p))) * p
]] }
local scalar = pico.op [[ given_(x, p) = x*x*x * p*p*sqrt(p) ]]

local m = pico.model "powers"
m:axes { vocab = 7, d = 3 }
m:input "targets"
local tokens = m:input "tokens"
local x, p = m("x", "vocab d") { vocab = tokens }, m("p", "vocab d", { init = "ones" }) { vocab = tokens }
local loss = 0
for i, op in ipairs(ops) do
  loss = loss + sum("d", op(x * m("in" .. i, "d"), p * m("scale" .. i, "d", { init = "ones" })) * m("out" .. i, "d"))
end
loss = loss + sum("d", scalar(x, p) * m("given", "d"))
m:loss(loss)
return m
