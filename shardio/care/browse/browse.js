// Arrow keys lead to the previous and the next page; what a scan has found is kept up to date while it goes on.
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const link = rel && document.querySelector(`a[rel="${rel}"]`);
  if (link) location.assign(link.href);
});

const progress = document.getElementById("progress");
const ask = async () => {
  let state;
  try {
    state = await (await fetch(progress.dataset.url)).json();
  } catch {
    return; // the server has ended
  }
  if (state.done || "fill" in progress.dataset) location.reload();
  else {
    progress.textContent = state.text;
    setTimeout(ask, 1500);
  }
};
if (progress) setTimeout(ask, 1500);
