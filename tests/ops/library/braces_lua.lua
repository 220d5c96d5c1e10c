-- Braces and views in Lua: pick, rename, shorter rename, lookups of a parameter (twice, and of a view), splits, merges.
local pico = require "pico"
local sum = pico.sum

local m = pico.model "braces_lua"
m:axes { vocab = 7, two = 2, half = 3, position = 8, k = 4 }
m:input "targets"
local tokens = m:input "tokens"
local embed = m("embed", "vocab (two half)")
local x = embed { vocab = tokens }
local late = m("late", "position two half") { position = "seq" }
local y = x * late
local loss = sum("half", y { two = 0 } * y { two = 1 } * m("pick", "half"))
local merged = y:view "(two half) -> d"
loss = loss + sum("d", merged * merged * m("merged", "d"))
local other = (merged * merged):view "d -> (third:3 pair:2)"
loss = loss + sum("third pair", other * m("other", "pair third"))
local swapped = y:view "(half two) -> e"
loss = loss + sum("e", swapped * m("swapped", "e") * pico.sin(swapped))
local key = (y:view "(two half) -> d") { seq = "key" }
local square = sum("d", merged * key)
loss = loss + sum("key", square * square * 0.1)
loss = loss + sum("two half", embed { vocab = 3 } * embed { vocab = tokens } * y)
loss = loss + sum("two half", (y { seq = 2 }) * y)
local w = m("w", "(k vocab)"):view "(k vocab) -> flat"
loss = loss + sum("k", (w:view "flat -> (k vocab)") { vocab = tokens } * m("k", "k"))
local first = y { half = "two", two = "turned" }
loss = loss + sum("two turned", first * first * m("first", "two turned"))
m:loss(loss)
return m
