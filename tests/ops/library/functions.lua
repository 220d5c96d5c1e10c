-- Functions of one argument, each on values inside its domain and on both sides of zero where it has them.
local pico = require "pico"
local sum = pico.sum

local ops = { pico.op [[
  f_exp(x)     = exp(x)
  f_log(x)     = log(x^2 + 0.3)
  f_sqrt(x)    = sqrt(x^2 + 0.3)
  f_rsqrt(x)   = rsqrt(x^2 + 0.3)
  f_tanh(x)    = tanh(1.7*x)
  f_sigmoid(x) = sigmoid(2*x)
  f_erf(x)     = erf(x)
  f_sin(x)     = sin(3*x)
  f_cos(x)     = cos(3*x)
  f_abs(x)     = abs(x)
  f_sign(x)    = x * sign(x)
  f_floor(x)   = x * floor(2.5*x)
  f_int(x)     = x * int(2.5*x)
  f_whole(x)   = x * abs(int(2.3*x)) + x * sign(int(2.7*x)) * -int(1.3*x)
  f_neg(x)     = -x * -(x + 1)
  f_div(x)     = 1 / (1 + x^2) - x / 3 + (x - 2) / (x^2 + 1)
  f_f32(x)     = f32(x) * x
  f_table(x)   = x * const(sin(0.3 + 1)) + const(exp(0.5))
  f_nested(x)  = exp(-abs(sin(log(1 + exp(x))))) / sqrt(1 + tanh(x)^2)
]] }
local hits = pico.op [[ f_table_seq(x[.., seq]) = x * const(cos(index(seq) * 0.7)) / (1 + index(seq)) ]]

local m = pico.model "functions"
m:axes { vocab = 7, d = 3 }
m:input "targets"
local x = m("embed", "vocab d") { vocab = m:input "tokens" }
local loss = 0
for i, op in ipairs(ops) do
  loss = loss + sum("d", op(x * m("in" .. i, "d")) * m("out" .. i, "d"))
end
m:loss(loss + sum("d", hits(x) * x))
return m
