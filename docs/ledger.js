// The ledger's menus: a claim shows when it agrees with all of them.
document.querySelectorAll(".ledger").forEach((ledger) => {
  const menus = [...ledger.querySelectorAll("select")];
  const show = () =>
    ledger.querySelectorAll("details[data-verdict]").forEach((row) => {
      row.hidden = menus.some((menu) => menu.value && row.dataset[menu.dataset.by] !== menu.value);
    });
  menus.forEach((menu) => menu.addEventListener("change", show));
});
