// Light or dark as the page of Airflow around this one, which changes a class; alone, as the browser prefers.
"use strict";
(function () {
  const own = document.documentElement;
  let outer = null;
  try {
    outer = window.parent === window ? null : window.parent.document.documentElement;
  } catch (_error) {
    outer = null;
  }
  function follow() {
    const dark = outer ? outer.classList.contains("dark") : window.matchMedia("(prefers-color-scheme: dark)").matches;
    own.dataset.theme = dark ? "dark" : "light";
  }
  follow();
  if (outer) {
    new MutationObserver(follow).observe(outer, { attributes: true, attributeFilter: ["class"] });
  } else {
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", follow);
  }
})();
