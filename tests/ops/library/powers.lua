-- x^n: products for whole n up to 8, else pow; exponents that are tensors; bases that are numbers.
local pico = require "pico"
local sum = pico.sum

local ops = { pico.op [[
  power0(x, p)  = x^0 * p + x*p
  power1(x, p)  = x^1 * p
  power2(x, p)  = x^2 * p
  power3(x, p)  = x^3 + p
  power4(x, p)  = (x + p)^4
  power5(x, p)  = (x*p)^5
  power6(x, p)  = x^6 / p
  power7(x, p)  = x^7 * p
  power8(x, p)  = x^8 * p
  power9(x, p)  = p^9 * x
  half(x, p)    = p^0.5 * x
  divided(x, p) = p^(1/3) * x
  minus1(x, p)  = p^-1 * x
  minus15(x, p) = (p + x^2)^-1.5
  tensor(x, p)  = p^x
  both(x, p)    = p^(x*p) * x
  base2(x, p)   = 2^x * p
  base_e(x, p)  = 2.718^(x*p)
  tower(x, p)   = p^x^2
  whole(x, p)   = (1 + int(3*p))^x * p
]] }
local scalar = pico.op [[ given(x, p; n, h) = x^n * p^h ]]

local m = pico.model "powers"
m:axes { vocab = 7, d = 3 }
m:input "targets"
local tokens = m:input "tokens"
local x, p = m("x", "vocab d") { vocab = tokens }, m("p", "vocab d", { init = "ones" }) { vocab = tokens }
local loss = 0
for i, op in ipairs(ops) do
  loss = loss + sum("d", op(x * m("in" .. i, "d"), p * m("scale" .. i, "d", { init = "ones" })) * m("out" .. i, "d"))
end
loss = loss + sum("d", scalar(x, p, { n = 3, h = 2.5 }) * m("given", "d"))
m:loss(loss)
return m
