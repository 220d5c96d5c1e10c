local f = load("\27Lua")
f()
