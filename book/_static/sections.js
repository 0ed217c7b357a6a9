/* On a phone a long page shows its beginning, and the heading of each further section opens it. */
document.addEventListener("DOMContentLoaded", () => {
  if (!matchMedia("(max-width: 600px)").matches || document.documentElement.scrollHeight <= 9000) return;
  for (const heading of document.querySelectorAll("article section > section > h2")) {
    const fold = document.createElement("details");
    fold.className = "rest section";
    const summary = document.createElement("summary");
    fold.append(summary, ...[...heading.parentElement.children].filter((each) => each !== heading));
    heading.parentElement.append(fold);
    summary.append(heading);
  }
  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    target.querySelector(":scope > details.section")?.setAttribute("open", "");
    for (let each = target.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
});
