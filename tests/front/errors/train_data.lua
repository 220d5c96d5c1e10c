local pico, nn = require "pico", require "nn"
local m = pico.model "x"
m:axes { vocab = 8, hidden = 4 }
m:train { data = { "a.txt", 3 } }
