// Makes elements. Every text goes through text nodes; no HTML is made from text.

function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key === "width") made.style.width = value;
    else if (key === "fill") made.style.background = `var(--c${value})`;
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== false) made.append(child);
  return made;
}
