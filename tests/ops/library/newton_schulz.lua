-- The iteration of muon as a forward op: products of a matrix with itself, renamings to and fro.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "newton_schulz"
m:axes { vocab = 7, row = 3, col = 4 }
m:input "targets"
local x = m("embed", "vocab row col") { vocab = m:input "tokens" } * 0.4
local w = nn.newton_schulz(m("w", "row col"))
m:loss(sum("row col", x * w * w))
return m
