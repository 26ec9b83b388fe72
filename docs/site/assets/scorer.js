// Ranks guides before reference, and both before pages for contributors.
const FOLDERS = [
  ["learn/", 12], ["how-to/", 12], ["start/", 8], ["help/", 14], ["reference/glossary", 8],
  ["reference/ops/", 2], ["gallery/", -4], ["coming-from/", -4], ["about/", -10],
];
var Scorer = {
  score: ([page, , , , score]) =>
    score + (FOLDERS.find(([folder]) => page.startsWith(folder))?.[1] ?? 0),
  objNameMatch: 40,
  objPartialMatch: 4,
  objPrio: { 0: 8, 1: 2, 2: -5 },
  objPrioDefault: 0,
  title: 25,
  partialTitle: 12,
  term: 5,
  partialTerm: 2,
};
