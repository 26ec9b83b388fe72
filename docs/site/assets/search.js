// Ranks pages by how many words of the query they have, then by where these words are: in the
// title, the description, a heading or the text. Sphinx itself finds only pages with all words.
const FOLDERS = [ // guides come before reference, and generated pages last
  ["help/", 1.2], ["learn/", 1.2], ["how-to/", 1.2], ["start/", 1.1], ["coming-from/", 1],
  ["reference/ops/", 0.8], ["reference/api/", 0.7], ["reference/command-line/", 0.7],
  ["reference/", 1], ["gallery/", 0.5], ["about/", 0.5], ["", 0.5],
];
const MOST_RESULTS = 30;

// Returns the stems of the words of a text, without such as `the`. `tf.data` is two words.
const stemsOf = (text) => {
  const words = splitQuery(text.toLowerCase());
  const kept = words.filter((word) => !stopwords.has(word));
  const stemmer = new Stemmer();
  return [...new Set((kept.length ? kept : words).map((word) => stemmer.stemWord(word)))];
};

// Returns all titles, headings, options and Python names: the parts of pages that results lead to.
const headingsOf = (index) => {
  const headings = [];
  for (const [text, parts] of Object.entries(index.alltitles))
    for (const [page, id] of parts)
      headings.push({ page, text, anchor: id ? `#${id}` : "", stems: stemsOf(text) });
  for (const [prefix, objects] of Object.entries(index.objects))
    for (const [page, , , id, name] of objects) {
      const text = id ? name : `${prefix}.${name}`;
      headings.push({ page, text, anchor: `#${id || text}`, stems: stemsOf(name) });
    }
  return headings;
};

// Returns how well a word of a page matches one of the query, as `evaluation` matches `eval`.
const match = (word, stem) =>
  word === stem ? 1 : stem.length > 2 && word.startsWith(stem) ? 0.5 : 0;
const bestMatch = (words, stem) => Math.max(0, ...words.map((word) => match(word, stem)));

// Returns the page, its best heading, the number of its words and its score, for all pages.
const rank = (index, wordsOfPages, query) => {
  const stems = stemsOf(query);
  const pages = index.docnames.map((name, page) => {
    const [description, keywords] = wordsOfPages[name] ?? ["", ""];
    const words = stemsOf(`${description} ${keywords}`);
    const scores = stems.map((stem) => 3 * bestMatch(words, stem));
    const named = keywords.toLowerCase().split(", ").includes(query);
    return { page, scores, named, heading: null, best: 0 };
  });
  for (const terms of [index.terms, index.titleterms])
    for (const [word, found] of Object.entries(terms))
      stems.forEach((stem, i) => {
        for (const page of match(word, stem) ? [found].flat() : [])
          pages[page].scores[i] = Math.max(match(word, stem), pages[page].scores[i]);
      });
  const weights = stems.map((_, i) => { // a word that few pages have counts more
    const count = pages.filter(({ scores }) => scores[i]).length;
    return Math.log(1 + pages.length / (1 + count));
  });
  const weighted = (scores) => scores.reduce((sum, score, i) => sum + weights[i] * score, 0);
  for (const heading of (Search.headings ??= headingsOf(index))) {
    const scores = stems.map((stem) => bestMatch(heading.stems, stem));
    const share = scores.reduce((sum, score) => sum + score, 0) / heading.stems.length;
    let score = weighted(scores) * (1 + share) * (heading.anchor ? 1 : 2);
    if (heading.text.toLowerCase() === query) score *= /^-|\./.test(query) ? 4 : 1.5;
    const page = pages[heading.page];
    if (score > page.best) Object.assign(page, { heading, best: score });
  }
  return pages.map((page) => {
    const folder = FOLDERS.find(([name]) => index.docnames[page.page].startsWith(name))[1];
    const all = weighted(page.scores) * (page.named ? 1.5 : 1) + page.best;
    const words = page.named ? stems.length : page.scores.filter((score) => score).length;
    return { ...page, words, score: all * folder };
  });
};

Search._performSearch = (query) => {
  _removeChildren(document.getElementById("search-progress"));
  const index = Search._index;
  const wordsOfPages = JSON.parse(document.getElementById("page-words").textContent);
  const found = rank(index, wordsOfPages, query.toLowerCase().trim());
  return found
    .filter(({ words }) => words)
    .sort((a, b) => b.words - a.words || b.score - a.score)
    .slice(0, MOST_RESULTS)
    .map(({ page, heading, score }) => {
      const title = index.titles[page];
      const anchor = heading?.anchor ?? "";
      const name = anchor ? `${title} > ${heading.text}` : title;
      return [index.docnames[page], name, anchor, null, score, index.filenames[page], "title"];
    })
    .reverse(); // Sphinx shows the last one first
};

// Shows the first paragraph of the part that a result leads to, or the description of the page.
Search.makeSearchSummary = (html, words, anchor) => {
  const page = new DOMParser().parseFromString(html, "text/html");
  const part = anchor ? page.getElementById(anchor.slice(1)) : null;
  const content = part?.matches("dt") ? part.nextElementSibling : part;
  const summary = document.createElement("p");
  summary.classList.add("context");
  summary.textContent = (content?.querySelector("p")?.textContent
    ?? page.querySelector("meta[name=description]")?.content ?? "");
  return summary;
};
