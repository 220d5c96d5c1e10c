-- worst.lua [brief]: reads "f64 loss X norm X grads X params X model=llama layers=4 ..." lines (grid.sh) and prints the
-- worst differences: for each dtype the worst of all with its layout; unless brief, for each value of each option.
local brief = arg[1] == "brief"
local kinds = { "loss", "norm", "grads", "params" }
local rows = {}
for line in io.lines() do
  local r = { dtype = line:match "^%S+", text = line:match "model=.*", options = {} }
  for _, k in ipairs(kinds) do r[k] = line:match(" " .. k .. " (%S+)") end
  for name, value in r.text:gmatch "(%w+)=(%S+)" do r.options[#r.options + 1] = { name = name, value = value } end
  rows[#rows + 1] = r
end
if #rows == 0 then print "no layout passed" return end

-- The rows of `dtype` with option name=value (nil: all): number and the worst row of each kind. NaN is worse than all.
local function worst(dtype, name, value)
  local n, w = 0, {}
  for _, r in ipairs(rows) do
    local counts = r.dtype == dtype and not name
    for _, o in ipairs(r.options) do counts = counts or r.dtype == dtype and o.name == name and o.value == value end
    if counts then
      n = n + 1
      for _, k in ipairs(kinds) do
        local x = tonumber(r[k])
        if r[k] and not (w[k] and x and x <= tonumber(w[k][k])) then w[k] = r end
      end
    end
  end
  return n, w
end

local function print_row(label, n, w)
  local cells = {}
  for _, k in ipairs(kinds) do cells[#cells + 1] = ("%9s"):format(w[k] and w[k][k] or "-") end
  print(("%-22s %7d %s"):format(label, n, table.concat(cells)))
end

for _, dtype in ipairs { "f64", "f32" } do
  local n, w = worst(dtype)
  if n > 0 then
    print(("%-22s %7s %9s%9s%9s%9s"):format("worst, " .. dtype, "layouts", table.unpack(kinds)))
    print_row("all", n, w)
    for at, option in ipairs(brief and {} or rows[1].options) do
      local seen, values = {}, {}
      for _, r in ipairs(rows) do
        local v = r.options[at].value
        if not seen[v] then seen[v] = true values[#values + 1] = v end
      end
      table.sort(values, function(a, b)
        local x, y = tonumber(a), tonumber(b)
        if x and y then return x < y end
        return a < b
      end)
      for _, v in ipairs(values) do local count, of_value = worst(dtype, option.name, v)
        if count > 0 then print_row("  " .. option.name .. " " .. v, count, of_value) end
       end
    end
    for _, k in ipairs(kinds) do
      if w[k] then print(("  worst %-6s %s  %s"):format(k, w[k][k], w[k].text)) end
    end
  end
end
