// The button beside an id copies the whole id. Without TLS, and on another machine, a browser has no clipboard.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  for (const each of document.querySelectorAll("button[data-copy]")) each.textContent = "Copy";
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
});
