local t = { [{}] = 1 }
for k in pairs(t) do print(k) end
