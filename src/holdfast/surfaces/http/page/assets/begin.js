// Loads the page. When a part of it does not come, it would stand there for ever as if it were connecting: so it is loaded again, and
// at last says that it could not be. It is sent within the page's own text (assets.py), as it could not do this for itself.

const AGAIN = "loaded again";
const TRIES = 4;

const load = async () => {
  // A script of this kind runs once the styles have come, or have not.
  if (!document.querySelector("link[rel=stylesheet]").sheet?.cssRules.length) throw new Error("the styles did not come");
  await import("/assets/page.js");
};

load().then(
  () => sessionStorage.removeItem(AGAIN),
  (error) => {
    const tries = Number(sessionStorage.getItem(AGAIN)) + 1;
    const last = tries >= TRIES;
    document.getElementById("link-words").textContent = last ? "not loaded: load this page again" : "loading again";
    if (last) sessionStorage.removeItem(AGAIN);
    else {
      sessionStorage.setItem(AGAIN, String(tries));
      setTimeout(() => location.reload(), 250 * 2 ** tries);
    }
    reportError(error);
  },
);
