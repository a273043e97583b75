(() => {
  // A link to a point opens its row; without this script the row is still found, just closed.
  const open = () => {
    let name = "";
    try { name = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const row = document.getElementById(name);
    if (row && row.tagName === "DETAILS") { row.open = true; row.scrollIntoView({ block: "center" }); }
  };
  addEventListener("hashchange", open);
  open();
})();
