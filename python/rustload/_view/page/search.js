// The search: text, a glob, or a regular expression. Expressions run on an automaton, in time proportional to the length of the
// name whatever the expression, so none can hang the page.

const STATES_MAX = 500;

// A function from name to whether it matches; throws an Error whose message is for the user.
function matcherOf(text) {
  const found = /^\/(.*?)\/?(i?)$/.exec(text);
  if (text.startsWith("/") && text.length > 1 && found) return automaton(found[1], found[2] === "i" || found[1] === found[1].toLowerCase());
  const ignoreCase = text === text.toLowerCase();
  if (/[*?]/.test(text)) return glob(text, ignoreCase);
  return (name) => (ignoreCase ? name.toLowerCase() : name).includes(text);
}

// `*` stands for any characters, dots too, and `?` for one; greedy, with one place to go back to.
function glob(pattern, ignoreCase) {
  return (given) => {
    const name = ignoreCase ? given.toLowerCase() : given;
    let at = 0, in_pattern = 0, star = -1, mark = 0;
    while (at < name.length) {
      const char = pattern[in_pattern];
      if (char === "*") star = in_pattern++, mark = at;
      else if (char === "?" || (char !== undefined && char === name[at])) at++, in_pattern++;
      else if (star >= 0) in_pattern = star + 1, at = ++mark;
      else return false;
    }
    while (pattern[in_pattern] === "*") in_pattern++;
    return in_pattern === pattern.length;
  };
}

// Parses to a tree: {any|set|char|start|end|seq|alt|repeat}.
function parseExpression(text) {
  let at = 0;
  const fail = (message) => { throw new Error(message); };
  const classes = { d: "0-9", w: "A-Za-z0-9_", s: " \t" };
  function classOf(letter) {
    const set = setOf(classes[letter.toLowerCase()]);
    return { type: "set", test: set, negated: letter !== letter.toLowerCase() };
  }
  function setOf(body) {
    const ranges = [], tests = [];
    for (let i = 0; i < body.length; i++) {
      if (body[i] === "\\" && /[dwsDWS]/.test(body[i + 1] || "")) {
        const { test, negated } = classOf(body[++i]);
        tests.push((char) => test(char) !== negated);
        continue;
      }
      if (body[i] === "\\") i++;
      const low = body[i];
      if (body[i + 1] === "-" && i + 2 < body.length) ranges.push([low, body[i += 2]]);
      else ranges.push([low, low]);
    }
    return (char) => ranges.some(([low, high]) => char >= low && char <= high) || tests.some((test) => test(char));
  }
  function atom() {
    const char = text[at++];
    if (char === "(") {
      if (text[at] === "?") text[at + 1] === ":" ? (at += 2) : fail("look-around is not supported");
      const inner = alternatives();
      if (text[at++] !== ")") fail("a ) is missing");
      return inner;
    }
    if (char === "[") {
      let end = at + (text[at] === "^" ? 1 : 0);
      if (text[end] === "]") end++;
      while (end < text.length && text[end] !== "]") end += text[end] === "\\" ? 2 : 1;
      if (end >= text.length) fail("a ] is missing");
      const negated = text[at] === "^";
      const test = setOf(text.slice(at + (negated ? 1 : 0), end));
      at = end + 1;
      return { type: "set", test, negated };
    }
    if (char === "\\") {
      const escaped = text[at++];
      if (escaped === undefined) fail("it ends with a backslash");
      if (/[dwsDWS]/.test(escaped)) return classOf(escaped);
      if (/[A-Za-z0-9]/.test(escaped)) fail(`\\${escaped} is not supported`);
      return { type: "set", test: (one) => one === escaped };
    }
    if (char === ".") return { type: "set", test: () => true };
    if (char === "^" || char === "$") return { type: char };
    if ("*+?{".includes(char)) fail(`nothing to repeat before ${char}`);
    return { type: "set", literal: char };
  }
  function repeated() {
    let item = atom();
    for (;;) {
      const char = text[at];
      let low, high;
      if (char === "*") [low, high] = [0, Infinity];
      else if (char === "+") [low, high] = [1, Infinity];
      else if (char === "?") [low, high] = [0, 1];
      else {
        const found = char === "{" && /^\{(\d{1,3})(,(\d{0,3}))?\}/.exec(text.slice(at));
        if (!found) {
          if (char === "{") fail("{ needs a number");
          return item;
        }
        low = Number(found[1]);
        high = found[2] === undefined ? low : found[3] === "" ? Infinity : Number(found[3]);
        at += found[0].length - 1;
      }
      at++;
      if (text[at] === "?") at++; // lazy: which match is found does not matter
      item = { type: "repeat", item, low, high };
    }
  }
  function sequence() {
    const items = [];
    while (at < text.length && text[at] !== "|" && text[at] !== ")") items.push(repeated());
    return { type: "seq", items };
  }
  function alternatives() {
    const options = [sequence()];
    while (text[at] === "|") at++, options.push(sequence());
    return options.length === 1 ? options[0] : { type: "alt", options };
  }
  const tree = alternatives();
  if (at < text.length) fail("a ( is missing");
  return tree;
}

// Thompson's construction: states with an arrow for a character, or arrows for none.
function automaton(text, ignoreCase) {
  if (text.length > 200) throw new Error("it is longer than 200 characters");
  const states = [];
  const add = (state) => {
    if (states.push(state) > STATES_MAX) throw new Error("it is too large");
    return states.length - 1;
  };
  // Builds from the end: the state to go on with is known.
  function build(item, next) {
    switch (item.type) {
      case "set": {
        const literal = ignoreCase && item.literal ? item.literal.toLowerCase() : item.literal;
        if (literal !== undefined) return add({ test: (char) => char === literal, next });
        const has = ignoreCase ? (char) => item.test(char) || item.test(char.toUpperCase()) : item.test;
        return add({ test: item.negated ? (char) => !has(char) : has, next });
      }
      case "^": case "$": return add({ edge: item.type, free: [next] });
      case "seq": return item.items.reduceRight((after, one) => build(one, after), next);
      case "alt": return add({ free: item.options.map((option) => build(option, next)) });
      default: {
        let after = next;
        if (item.high === Infinity) {
          const loop = add({ free: [next] });
          states[loop].free.push(build(item.item, loop));
          after = loop;
        } else {
          for (let n = item.low; n < item.high; n++) after = add({ free: [next, build(item.item, after)] });
        }
        for (let n = 0; n < item.low; n++) after = build(item.item, after);
        return after;
      }
    }
  }
  const end = add({});
  const start = build(parseExpression(text), end);
  const seen = new Int32Array(states.length);
  let step = 0;
  return (given) => {
    const name = ignoreCase ? given.toLowerCase() : given;
    let now = [];
    for (let at = 0; at <= name.length; at++) {
      step++;
      const reached = [], stack = [...now, start];
      while (stack.length) {
        const number = stack.pop();
        if (seen[number] === step) continue;
        seen[number] = step;
        if (number === end) return true;
        const state = states[number];
        if (state.edge === "^" && at > 0) continue;
        if (state.edge === "$" && at < name.length) continue;
        if (state.free) state.free.forEach((one) => stack.push(one));
        else reached.push(state);
      }
      now = [];
      for (const state of reached) if (at < name.length && state.test(name[at])) now.push(state.next);
    }
    return false;
  };
}
